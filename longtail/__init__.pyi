from longtail.fitting import fit as fit
from longtail.models import Label as Label
from longtail.models import LabelInfo as LabelInfo
from longtail.models import Model as Model
from longtail.models import load as load

__version__: str
