"""The evaluation of the Symphony paper (arXiv:2604.16880, section 4) as scenarios that run.

Each figure and table is a sweep file in ``symphony/``, at the paper's scale and in a small form,
and an entry of :data:`ringstep_ns3.paper.figures.FIGURES` that says what is measured. What the
paper leaves open is a choice of :data:`ringstep_ns3.paper.choices.CHOICES`. Numbers of the paper
stand in ``symphony/published.toml`` and nowhere else; all others are measured.

Our own studies are sweep files in ``studies/``, run and reported in the same way by
:mod:`ringstep_ns3.paper.study`.
"""

from ringstep_ns3.paper.choices import CHOICES, Choice, PaperError
from ringstep_ns3.paper.figures import FIGURES, Figure
from ringstep_ns3.paper.report import Report, run_figure

__all__ = ["CHOICES", "FIGURES", "Choice", "Figure", "PaperError", "Report", "run_figure"]
