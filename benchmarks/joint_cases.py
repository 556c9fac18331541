"""Training jobs whose groups are planned at once: cluster, boxes, degrees, model and batch."""

from __future__ import annotations

JOBS = [
    ("dgx-a100", 2, "tp=8,dp=2", "gpt-175b", 16),
    ("dgx-a100", 4, "tp=4,dp=8", "gpt-175b", 16),
    ("dgx-a100", 4, "tp=2,pp=4,dp=4", "gpt-175b", 32),
    ("dgx-a100", 8, "tp=8,pp=4,dp=2", "gpt-175b", 32),
    ("dgx-a100-pcie", 2, "tp=4,dp=4", "gpt-7.5b", 16),
    ("dgx-1v", 1, "tp=2,dp=4", "gpt-175b", 64),
    ("dgx-1v", 1, "tp=4,dp=2", "gpt-175b", 64),
    ("dgx-1v", 2, "tp=4,dp=4", "gpt-7.5b", 16),
    ("dgx-h100", 4, "tp=8,dp=4", "llama3-70b", 16),
    ("dgx-h100", 8, "tp=8,pp=2,dp=4", "gpt-175b", 64),
    ("dgx-h100", 8, "tp=4,cp=2,dp=8", "llama3-70b", 64),
    ("dgx-h100", 8, "pp=4,ep=16,dp=16", "deepseek-v3", 64),
    ("dgx-h100", 4, "ep=8,dp=32", "mixtral-8x7b", 64),
    ("mi250", 2, "tp=4,dp=8", "gpt-175b", 64),
    ("mi250", 2, "tp=8,dp=4", "gpt-175b", 64),
    ("mi250", 2, "tp=16,dp=2", "gpt-7.5b", 32),
    ("gb200-nvl72", 1, "tp=8,dp=9", "gpt-175b", 72),
    ("gb200-nvl72", 1, "tp=4,pp=2,dp=9", "gpt-175b", 72),
    ("mi300x", 2, "tp=8,dp=2", "llama3-70b", 16),
    ("mi300x", 2, "tp=4,dp=4", "llama3-70b", 16),
]
"""Jobs with tensor, context, data, pipeline and expert groups on up to 72 GPUs."""

LARGE = [
    ("dgx-a100", 64, "tp=8,pp=8,dp=8", "gpt-175b", 64),
    ("dgx-h100", 64, "tp=8,pp=4,dp=16", "gpt-175b", 64),
    ("dgx-h100", 64, "pp=8,ep=32,dp=64", "deepseek-v3", 64),
    ("gb200-nvl72", 7, "tp=8,dp=63", "gpt-175b", 63),
]
"""Jobs on about 512 GPUs."""
