"""The files that commands write and watch.

In reading order:
  outputs   a build's files, compared with a folder
  placing   files put in place all or nothing, with a journal
  kept      builds kept on disk
  scaffold  what `new` and `init` write
  watch     when a file is saved
"""
