"""Planners of a service on unequal GPUs: which GPUs, which replicas on them, which requests where.

Sources: arXiv 2502.00722 (cost-efficiency program), arXiv 2404.14527 (covering, Melange), arXiv 2406.01566
(flow over layer placements, Helix), arXiv 2311.11514 (search over groups, HexGen).
"""
