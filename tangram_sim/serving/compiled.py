"""How functions of the fast player are compiled; importing this module imports numba.

numba counts a reference to every array that a function is handed, in one step that no other thread may
interrupt, whenever the function is not inlined. A replica is a handful of arrays and its functions are
small: that was four fifths of the player's time (6.1 microseconds a request, 1.1 without). Nothing is
allocated here, as numba then demands when it compiles, and whoever plays a replica keeps its arrays.
"""

from functools import partial

from numba import njit

compiled = partial(njit, cache=True, _nrt=False)
