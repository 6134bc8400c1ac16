"""The command line: one word, one verb. Heavy parts are imported inside the commands."""
