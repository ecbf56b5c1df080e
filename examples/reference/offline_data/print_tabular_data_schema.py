"""Converting tabular data to RLlib's episode format: schema

Pages: 2.40, 2026; block 6
"""

import ray
from recording_expert_data_in_tabular_format import tabular_data_path

# Read the tabular data into a Ray dataset.
ds = ray.data.read_parquet(tabular_data_path)
# Now, print its schema.
print("Tabular data schema of expert experiences:\n")
print(ds.schema())
