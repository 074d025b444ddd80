"""stand-in"""
from dataclasses import dataclass


@dataclass(frozen=True)
class Tiles:
    tile_m: int
    tile_n: int
    tile_k: int
    stages: int
    cluster_m: int = 1
    cluster_n: int = 1
    pingpong: bool = False
    group: int = 8
    blocks: int = 132
    piece: int = 64
    ahead: bool = True
    prefetch: bool = True

    @property
    def accumulators(self):
        return self.tile_m * self.tile_n // 128 // (1 if self.pingpong else 2)

    @property
    def cluster(self):
        return self.cluster_m * self.cluster_n
