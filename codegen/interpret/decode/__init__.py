"""The instructions of PTX: each decoder makes a function that runs its instruction for all lanes at once.

The modules:
  instructions   the table: from an opcode's first word to its decoder
  decoding       what decoders share: types, modifiers, errors
  numbers/       on the registers of one thread
  accesses       loads, stores, atomics
  warps          between the lanes of a warp
  matrices       ldmatrix, stmatrix, mma.sync
  barriers       barriers and fences
  asynchronous/  those that complete later
"""
