"""`codea1 plan`: what a run needs on a TPU slice, found by compiling it for that slice on a CPU."""
