"""Pack the published traces into src/floe/evaluation/traces: `pack_traces.py ../shared/data`."""

import sys
from pathlib import Path

import numpy as np

from floe.evaluation import cache_sources as sources


def main(data: Path) -> None:
    rates_CW, variations_CW = sources.read_servegen(data / "trace_servegen")
    client, window = np.nonzero(rates_CW)
    files = [
        sources.pack(
            "servegen",
            {
                "client": client, "window": window, "rate": rates_CW[client, window],
                "variation": np.round(variations_CW[client, window], 3),
            },
            sources.FOLDER,
        )
    ]  # fmt: skip
    [path] = (data / "trace_mooncake").glob("conversation_trace*.jsonl")
    at_s, session = sources.read_mooncake(path)
    files.append(sources.pack("mooncake", {"at_s": at_s, "session": session}, sources.FOLDER))
    for kind in ("code", "conv"):
        at_s = sources.read_azure_llm(
            data / "trace_azure_llm_2023" / f"AzureLLMInferenceTrace_{kind}.csv"
        )
        columns = {"at_s": np.round(at_s[:8000], 2)}
        files.append(sources.pack(f"azure_{kind}", columns, sources.FOLDER))
    _, function = sources.read_azure_functions(data / "trace_azure_functions/Azure2021_200.csv")
    columns = {"invocations": np.bincount(function).astype(float)}
    files.append(sources.pack("azure_functions", columns, sources.FOLDER))
    for file in files:
        print(file, file.stat().st_size)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
