"""The evaluation of the Tangram paper (arXiv:2606.16907, Figs. 8 to 13) made again with the simulator."""
