"""``torchtpu``: looks at slices and collectives on paper. ``main`` lists the commands, one file each."""
