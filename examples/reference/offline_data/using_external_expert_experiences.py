"""Using external expert experiences

Pages: 2.40, 2026; block 4
"""

from hindcast import BCConfig, Columns

config = (
    BCConfig()
    .offline_data(
        # changed: a path instead of <input_path>.
        input_=["path/of/your/data"],
        # Provide the schema of your data (map to column names known to RLlib).
        input_read_schema={
            Columns.OBS: "o_t",
            Columns.ACTIONS: "a_t",
            Columns.REWARDS: "r_t",
            Columns.NEXT_OBS: "o_tp1",
            Columns.INFOS: "i_t",
            "done": "d_t",
        },
    )
)
