"""Files and batches of the simulator: kept in a file of its own, worked off as its clock says, told as providers do."""
