"""``ringstep tuner report``: the evaluation beside the paper's numbers, as HTML and Markdown.

``shape`` says what a result file may hold, ``paper`` what the paper says, ``measures`` which single
figures are compared and held to goals; sections are in ``detection``, ``performance``, ``breadth``,
``insight`` and ``summary``, charts in ``chart`` on top of ``svg``.
"""
