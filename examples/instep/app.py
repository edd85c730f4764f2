"""One database, three stores that follow it: a cache, a search index and a warehouse, by capture."""

import os

import headwater as hw

DATABASE = os.environ.get("SHOP_DATABASE", "postgresql://postgres@localhost/postgres")
CACHE = os.environ.get("SHOP_CACHE", "redis://localhost")
FOLDER = os.environ.get("SHOP_FOLDER", "data/shop")

app = hw.App("shop")


class Product(hw.Row):
    id: int
    title: str
    cents: int
    stock: int


app.capture("shop", hw.capture.Postgres(DATABASE, tables=["public.product"]))
app.table("product", Product, key="id", topic="shop.public.product", envelope="debezium")

app.sink("product", hw.sink.Redis(CACHE, prefix="product:"))
app.sink("product", hw.sink.Tantivy(f"{FOLDER}/search", text=["title"]))
app.sink("product", hw.sink.Delta(f"{FOLDER}/warehouse"))
