"""The figures of docs/results.md: evaluated runs, reproduced tables, posterior features and the check of FID."""

from eblvm.bench.measurements import fid, posterior_features, results
from eblvm.bench.pages.templates import Notes
from eblvm.bench.reproduce import listing, running
from eblvm.bench.reproduce.experiments import find
from eblvm.bench.tools import records
from eblvm.bench.tools.records import Record
from eblvm.engine import tables


def result_figures(record: Record, notes: Notes) -> dict[str, str]:
    where = f"{record['machine']['cpu']}; `{record['file']}`"
    return {
        "recipe": record["recipe"],
        "origin": f"Collected {record['date']} at commit {record['commit']}, {where}.",
        "table": tables.markdown(*results.table(record)),
    }


def reproduced_figures(record: Record, notes: Notes) -> dict[str, str]:
    """A table or figure of a paper next to what `eblvm reproduce` gave."""
    experiment = find(record["experiment"])
    many = f"mean and deviation of {record['seeds']} seeds" if record["seeds"] > 1 else "one seed"
    shortened = f", {record['steps']} steps" if record["steps"] is not None else ""
    origin = f"Collected {record['date']} at commit {record['commit']}, {record['machine']['cpu']}: {many}{shortened}."
    models = " and ".join(sorted({row["model"] for row in record["rows"] if row.get("model")}))
    pictures = sorted((records.SOURCE / "docs").glob(f"reproduce-{record['experiment']}*.png"))
    return {
        "experiment": record["experiment"],
        "title": experiment.title,
        "command": record["command"],
        "paper": f"The paper: {experiment.says}." if experiment.says else "",
        "origin": origin + (f" Models: {models}." if models else ""),
        "table": tables.markdown(*listing.compared(record)),
        "pictures": "\n\n".join(f"![{experiment.title}]({picture.name})" for picture in pictures),
    }


def feature_figures(record: Record, notes: Notes) -> dict[str, str]:
    pixels = " and ".join(f"{100 * accuracy:.1f} % {name}" for name, accuracy in record["pixels"].items())
    return {
        "origin": f"Recorded {record['date']} at commit {record['commit']}; pixels: {pixels}.",
        "table": tables.markdown(*posterior_features.table(record)),
        "commands": "\n".join(f"- {curve['label']}: `{curve['command']}`" for curve in record["curves"]),
    }


def fid_figures(record: Record, notes: Notes) -> dict[str, str]:
    when = f"Recorded {record['date']} at commit {record['commit']}."
    return {
        "known": str(fid.KNOWN),
        "origin": f"Inception of {record['inception']}. {when}",
        "table": tables.markdown(*fid.table(record)),
    }


FIGURES = {
    results.SCHEMA: result_figures,
    running.SCHEMA: reproduced_figures,
    posterior_features.SCHEMA: feature_figures,
    fid.SCHEMA: fid_figures,
}
