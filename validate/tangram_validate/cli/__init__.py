"""The laboratory's verbs, registered under the entry-point group `tangram_sim.verbs`."""
