"""The laboratory: predictions held against measurements, and rows of `hwdb/` calibrated from them.

It imports `tangram_sim`; the reverse never happens. `tangram` finds its verbs by entry point. Importing this
package imports no torch: verbs that run plans for real (room `testbed`) say what to install without it.
"""
