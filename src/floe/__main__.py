"""`python -m floe` is the `floe` command."""

from floe.cli.main import main

if __name__ == "__main__":
    main()
