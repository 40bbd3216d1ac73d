"""pandas: to_sql, read_sql and read_sql_table through SQLAlchemy.

Arguments: the URL of the database (postgresql+psycopg://…).
"""

import sys

import pandas
from sqlalchemy import create_engine, text

engine = create_engine(sys.argv[1])
frame = pandas.DataFrame({
    "city": ["Ulm", "Bonn", None],
    "people": [126000, 336000, 7],
    "area": [118.7, 141.1, float("nan")],
    "capital": [False, True, False],
    "founded": pandas.to_datetime(["0854-07-22", "1949-05-10 10:20:30", None], format="mixed"),
})
frame.to_sql("cities", engine, index=False)
frame.to_sql("cities", engine, index=False, if_exists="append")
assert pandas.read_sql("select count(*) as n from cities", engine)["n"][0] == 6
frame.to_sql("cities", engine, if_exists="replace", method="multi", index_label="i")
back = pandas.read_sql_table("cities", engine, index_col="i").sort_index()
assert list(back.columns) == list(frame.columns), back.columns
assert list(back["people"]) == [126000, 336000, 7] and back["people"].dtype == "int64", back.dtypes
assert back["area"].dtype == "float64" and back["area"].isna().tolist() == [False, False, True], back
assert back["capital"].tolist() == [False, True, False], back
assert back["founded"][1] == pandas.Timestamp("1949-05-10 10:20:30"), back["founded"]
assert back["city"][2] is None or pandas.isna(back["city"][2]), back
where = pandas.read_sql(text("select city, people from cities where people > :n order by people"), engine, params={"n": 100})
assert where["city"].tolist() == ["Ulm", "Bonn"], where
chunks = [len(c) for c in pandas.read_sql("select * from cities", engine, chunksize=2)]
assert chunks == [2, 1], chunks
print("ok")
