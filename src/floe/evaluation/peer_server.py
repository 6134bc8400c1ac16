"""llama-server in a process of its own, through xllamacpp: the peer of the mixed benchmark.

Run: `python -m floe.evaluation.peer_server MODEL --threads 2 --adapter A.gguf --adapter B.gguf`.
It prints its address as a JSON line and ends when stdin does.
"""

from __future__ import annotations

import argparse
import json
import sys

import xllamacpp


def main(arguments: list[str] | None = None) -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(prog="peer_server")
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--context-tokens", type=int, default=2048)
    parser.add_argument("--adapter", action="append", default=[])
    given = parser.parse_args(arguments)
    params = xllamacpp.CommonParams()
    params.model.path = given.model
    params.n_parallel = 2
    params.n_ctx = params.n_parallel * given.context_tokens
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = given.threads
    params.n_gpu_layers, params.verbosity, params.port = 0, 0, 0
    params.fit_params = False
    params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(a, 1.0) for a in given.adapter]
    params.lora_init_without_apply = True
    server = xllamacpp.Server(params)
    print(json.dumps({"url": server.listening_address}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
