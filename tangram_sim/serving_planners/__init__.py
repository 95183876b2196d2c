"""Planners of a service on unequal GPUs: which GPUs to rent, replicas on them, and shares of requests.

Sources: arXiv 2502.00722 (cost-efficiency program), arXiv 2404.14527 (covering, Melange), arXiv 2406.01566
(flow over layer placements, Helix), arXiv 2311.11514 (search over groups, HexGen).
"""
