"""The command line. Errors of users end in one message and exit status 2.

In reading order:
  program     the commands, and how their errors end
  options     the options that commands share
  project     a project's folders
  loading     a package of ops, or a user's function
  printing    tables, progress, partial results
  completing  shell completion
  schema      the JSON Schema of a spec
  files/      the files that commands write
  commands/   the commands
"""
