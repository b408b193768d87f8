"""Area, logic depth and speed of the engines, from Yosys and nextpnr: what ``python -m gen synth`` prints."""
