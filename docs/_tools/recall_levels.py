"""Print the accuracy that guessing reaches in `associative_recall`, exactly: docs/results/ablations/{rnn_to_transformer,mixers_recall}.md.

    python docs/_tools/recall_levels.py [PAIRS [VOCABULARY]]

All keys are asked for, and a correct prediction of the row's end counts like a correct answer, as in `test/token_accuracy`.
"""

import argparse
from collections import Counter
from collections.abc import Iterable
from functools import cache
from itertools import product


@cache
def crossing_out(counts: tuple[int, ...]) -> float:
    """Return the expected number of correct answers if each is the most frequent value left, where `counts` are the values' numbers.

    Example:
        >>> crossing_out((1, 1))  # the first one is a guess, the second one is left
        1.5
    """
    total = sum(counts)
    if not total:
        return 0.0
    after = ((count, crossing_out(tuple(sorted((*counts[:i], count - 1, *counts[i + 1 :]))))) for i, count in enumerate(counts) if count)
    return max(counts) / total + sum(count / total * rest for count, rest in after)


def levels(pairs: int, vocabulary: int) -> Iterable[tuple[str, float]]:
    """Yield ways of guessing, with their accuracy over the answers and the end of a row."""
    rows = Counter(tuple(sorted(Counter(values).values())) for values in product(range(vocabulary), repeat=pairs))
    count = vocabulary**pairs
    most = sum(number * max(counts) for counts, number in rows.items()) / count
    left = sum(number * crossing_out(counts) for counts, number in rows.items()) / count
    ways = {"any value": pairs / vocabulary, "the row's most frequent value": most, "that of those not yet answered": left}
    for name, right in ways.items():
        yield name, (1 + right) / (pairs + 1)


def main() -> None:
    """Print the levels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", type=int, nargs="?", default=4)
    parser.add_argument("vocabulary", type=int, nargs="?", default=16)
    options = parser.parse_args()
    for name, accuracy in levels(options.pairs, options.vocabulary):
        print(f"{name}: {accuracy:.4f}")


if __name__ == "__main__":
    main()
