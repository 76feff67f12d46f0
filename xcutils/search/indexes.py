"""The indexes by name. Imports no torch.

Another library is one more class with the methods of `Index`, and a row here: the stage `index`, prediction and mining
know no library.
"""

from xcutils.search.eight import Eight
from xcutils.search.hnsw import Hnsw
from xcutils.search.index import Index
from xcutils.search.plain import Exact

# Value of index.search -> its class.
INDEXES: dict[str, type[Index]] = {"hnsw": Eight, "hnswlib": Hnsw, "exact": Exact}
