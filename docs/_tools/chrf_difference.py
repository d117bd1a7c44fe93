"""Compare chrF and BLEU of torchmetrics with those of sacrebleu, on sentences of this site's pages with words dropped and replaced."""

import random
import re
from pathlib import Path

from sacrebleu import BLEU, CHRF
from torchmetrics.text import CHRFScore, SacreBLEUScore

DOCS = Path(__file__).parents[1]


def sentences(pattern: str) -> list[str]:
    """Return the sentences of at least six words in the paragraphs of pages; tables, code, lists and headings are left out."""
    paragraphs = [" ".join(part.split()) for page in sorted(DOCS.glob(pattern)) for part in re.split(r"\n\s*\n", page.read_text())]
    prose = [paragraph for paragraph in paragraphs if paragraph and paragraph[0] not in "|`#<!:"]
    return [sentence for paragraph in prose for sentence in re.split(r"(?<=[.다])\s+", paragraph) if len(sentence.split()) >= 6]


def main() -> None:
    """Print a Markdown table."""
    print("| pages | sentences | words kept | chrF torchmetrics | chrF sacrebleu | BLEU torchmetrics | BLEU sacrebleu |")
    print("|---" * 7 + "|")
    for pattern in ("ko/**/*.md", "how-to/*.md"):
        references = sentences(pattern)[:400]
        words = [word for reference in references for word in reference.split()]
        for kept in (0.3, 0.4, 0.6, 0.9):
            rng = random.Random(0)
            hypotheses = [
                " ".join(word if rng.random() < kept else rng.choice(words) for word in reference.split() if rng.random() < 0.9)
                for reference in references
            ]
            scores = []
            for theirs, ours in ((CHRFScore(n_word_order=0), CHRF()), (SacreBLEUScore(), BLEU(force=True))):
                scores.append(100 * float(theirs(hypotheses, [[reference] for reference in references])))
                scores.append(ours.corpus_score(hypotheses, [references]).score)
            print(f"| {pattern} | {len(references)} | {kept} | {' | '.join(f'{score:.3f}' for score in scores)} |")


if __name__ == "__main__":
    main()
