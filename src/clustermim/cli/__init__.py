"""The command line: a dict from command name to function, and how it ends."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

from clustermim import __version__
from clustermim.errors import ConfigError, UserError
from clustermim.stages.parsing import Command, Commands, call, find, overview

COMMANDS: Commands = {
    "data": {
        "get": Command("clustermim.data.download:get", "download a data set into the cache", ("name",)),
        "decode": Command(
            "clustermim.data.decoding:decode", "decode images once, so that training does not wait", ("data",)
        ),
    },
    "fit": {
        "kmeans": Command(
            "clustermim.stages.fit:fit_kmeans", "k-means clusters of patches, the tokenizer of ClusterMIM"
        ),
        "random": Command("clustermim.stages.fit:fit_random", "the tokenizer that knows nothing"),
        "labels": Command("clustermim.stages.fit:fit_labels", "the oracle: tokens are the classes"),
        "dvae": Command("clustermim.stages.fit:fit_dvae", "a discrete VAE, the recipe of DALL·E's tokenizer"),
        "vq": Command("clustermim.stages.fit:fit_vq", "a VQ-VAE: the nearest vectors of a learned codebook"),
        "vqgan": Command("clustermim.stages.fit:fit_vqgan", "a VQ-VAE with a discriminator"),
        "peco": Command("clustermim.stages.fit:fit_peco", "a VQ-VAE that keeps what a teacher sees"),
        "fsq": Command("clustermim.stages.fit:fit_fsq", "a few features rounded to levels"),
        "lfq": Command("clustermim.stages.fit:fit_lfq", "the signs of a few features"),
        "random-projection": Command(
            "clustermim.stages.fit:fit_random_projection", "BEST-RQ's quantizer: nothing is learned"
        ),
        "external": Command(
            "clustermim.stages.fit:fit_external", "a published tokenizer: the dVAE of DALL·E, or a VQGAN"
        ),
        "toy": Command("clustermim.stages.fit:fit_toy", "the tokenizers of the theory, on textures:"),
    },
    "tokenize": Command(
        "clustermim.stages.fit:tokenize_source", "write the ids of every patch to a file", ("tokenizer",)
    ),
    "score": Command("clustermim.stages.score:tcas", "score a tokenizer before any training", ("tokenizer",)),
    "advise": Command("clustermim.stages.advise:advise", "which tokenizer to pretrain with, from a few labels"),
    "pretrain": Command("clustermim.pretraining:pretrain", "pretrain an encoder by predicting what is masked"),
    "iterate": Command("clustermim.stages.iterate:iterate", "cluster the encoder's own features and pretrain again"),
    "probe": Command("clustermim.evaluation.stages:probe", "linear probe of a pretrained encoder", ("run",)),
    "knn": Command("clustermim.evaluation.stages:nearest_neighbours", "nearest neighbours of its features", ("run",)),
    "finetune": Command(
        "clustermim.evaluation.finetune:finetune", "train a pretrained encoder further, on labels", ("run",)
    ),
    "export": Command("clustermim.models.export:export", "write an encoder for timm or transformers", ("run",)),
    "show": Command("clustermim.reports.show:show", "draw what the tokens of a tokenizer mean", ("tokenizer",)),
    "report": Command("clustermim.reports.stage:report", "one page to look at: tables, charts, tokens", ("folders",)),
    "study": Command("clustermim.studies.stage:study", "run a YAML list of stages, resumably", ("file",)),
    "run": Command("clustermim.studies.preset:run_preset", "run a method of configs/ from data to accuracy"),
    "results": Command("clustermim.studies.document:results", "write the tables of all kept results into a document"),
    "theory": {
        "audit": Command("clustermim.theory.stages:theory_audit", "every formula of the paper against brute force"),
        "toy": Command("clustermim.theory.stages:theory_toy", "tokenizers of the paper's toy model, exactly"),
        "theorem": Command(
            "clustermim.theory.stages:theory_theorem", "are labels the best tokenizer of a small graph?"
        ),
    },
    "demo": Command("clustermim.cli.demo:demo", "the whole path on embedded data, in a few minutes"),
    "doctor": Command("clustermim.cli.doctor:doctor", "versions, devices, threads, folders and extras"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; whatever the user can mend is one line on stderr and exit code 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so that nothing half-written stays
    try:
        run([word for word in words if word != "--debug"])
    except UserError as error:
        if debug:
            raise
        return fail(str(error))
    except BrokenPipeError:  # the reader of our output, such as `head`, has enough
        sys.stderr.close()
        return 0
    except OSError as error:
        if debug or error.errno is None:
            raise
        return fail(f"{error.filename or 'input or output'}: {error.strerror}")
    except KeyboardInterrupt:
        if debug:
            raise
        print("interrupted; nothing half-written was left", file=sys.stderr)
        return 130
    return 0


def run(words: list[str]) -> None:
    """Find the command and call it."""
    if words and words[0] == "--version":
        print(f"clustermim {__version__}")
        return
    path, found, rest = find(COMMANDS, words)
    if isinstance(found, Command):
        call(path, found, rest)
    elif not rest or rest[0] in ("-h", "--help"):
        print(overview(path, found))
    else:
        raise ConfigError(f"{rest[0]} must come after a command; see clustermim --help")


def fail(message: str) -> int:
    """One line, whatever the message holds."""
    print("error: " + " ".join(message.split()), file=sys.stderr)
    return 2
