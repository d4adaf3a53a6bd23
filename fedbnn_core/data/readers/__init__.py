"""One module per file format, each with `find` and `read`.

``find(root)`` lists the source files if the dataset lies in the folder `root`, else
returns None. ``read(files, allocate)`` decodes them into `Decoded`.
"""
