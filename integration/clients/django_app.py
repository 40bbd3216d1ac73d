"""Django: makemigrations, migrate with its own applications, the ORM, inspectdb.

Arguments: host, port, database and user; an empty directory.
"""

import datetime
import decimal
import io
import pathlib
import sys
import uuid

import django
from django.conf import settings
from django.core.management import call_command

host, port, database, user, directory = sys.argv[1:]
app = pathlib.Path(directory) / "shop"
app.mkdir()
(app / "__init__.py").write_text("")
(app / "models.py").write_text("""
import uuid
from django.db import models
class Author(models.Model):
    name = models.CharField(max_length=100, unique=True)
    born = models.DateField(null=True)
class Book(models.Model):
    key = models.UUIDField(default=uuid.uuid4)
    title = models.TextField()
    price = models.DecimalField(max_digits=10, decimal_places=2)
    printed = models.DateTimeField()
    data = models.JSONField(default=dict)
    sold = models.PositiveIntegerField(default=0)
    author = models.ForeignKey(Author, on_delete=models.CASCADE, related_name="books")
    tags = models.ManyToManyField("Tag")
    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(price__gte=0), name="price_positive")]
        indexes = [models.Index(fields=["title", "price"], name="book_title_price")]
class Tag(models.Model):
    word = models.SlugField()
""")
sys.path.insert(0, directory)
settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "HOST": host, "PORT": port, "NAME": database, "USER": user}},
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django.contrib.sessions", "shop"],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField", USE_TZ=True, TIME_ZONE="UTC")
django.setup()

call_command("makemigrations", "shop", verbosity=0)
call_command("migrate", verbosity=0)
(app / "models.py").write_text((app / "models.py").read_text().replace(
    "sold = models.PositiveIntegerField(default=0)", "sold = models.PositiveIntegerField(default=0, db_index=True)\n    pages = models.IntegerField(null=True)"))
call_command("check", "--database", "default")

from django.contrib.auth.models import User
from django.db import IntegrityError, connection, transaction
from django.db.models import Count, F, Sum
from django.db.models.functions import ExtractYear, TruncMonth, Lower
from shop.models import Author, Book, Tag

ada = Author.objects.create(name="Ada", born=datetime.date(1815, 12, 10))
bob = Author.objects.create(name="Bob")
printed = datetime.datetime(2026, 3, 4, 5, 6, 7, tzinfo=datetime.timezone.utc)
books = Book.objects.bulk_create([
    Book(title=t, price=decimal.Decimal(p), printed=printed + datetime.timedelta(days=20 * i), author=ada, data={"n": i})
    for i, (t, p) in enumerate([("One", "1.50"), ("Two", "2.25"), ("Three", "10.00")])])
assert all(isinstance(b.pk, int) for b in books), books
books[0].tags.add(Tag.objects.create(word="red"), Tag.objects.create(word="blue"))
book = Book.objects.select_related("author").get(title="One")
assert isinstance(book.key, uuid.UUID) and book.price == decimal.Decimal("1.50") and book.printed == printed, vars(book)
assert book.author.born == datetime.date(1815, 12, 10) and book.data == {"n": 0}
assert sorted(t.word for t in book.tags.all()) == ["blue", "red"]
assert list(Book.objects.filter(title__icontains="T").order_by("title").values_list("title", flat=True)) == ["Three", "Two"]
assert Author.objects.annotate(n=Count("books")).get(name="Ada").n == 3
assert Book.objects.aggregate(s=Sum("price"))["s"] == decimal.Decimal("13.75")
assert list(Book.objects.annotate(y=ExtractYear("printed")).values_list("y", flat=True).distinct()) == [2026]
months = Book.objects.annotate(m=TruncMonth("printed")).values("m").annotate(n=Count("id")).order_by("m")
assert [(m["m"].month, m["n"]) for m in months] == [(3, 2), (4, 1)], months
Book.objects.filter(title="Two").update(sold=F("sold") + 1)
assert Book.objects.filter(printed__year=2026, sold=1).count() == 1
assert {b.title for b in Book.objects.all().iterator(chunk_size=2)} == {"One", "Two", "Three"}
assert Author.objects.get_or_create(name="Bob") == (bob, False)
assert Author.objects.annotate(l=Lower("name")).filter(l="ada").exists()
try:
    with transaction.atomic():
        Author.objects.create(name="Ada")
    raise AssertionError("a second Ada")
except IntegrityError:
    pass
User.objects.create_user("me", password="secret")
assert User.objects.get(username="me").check_password("secret")
ada.delete()
assert Book.objects.count() == 0

out = io.StringIO()
call_command("inspectdb", stdout=out)
text = out.getvalue()
for want in ("class ShopAuthor(models.Model)", "author = models.ForeignKey(ShopAuthor", "born = models.DateField(blank=True, null=True)",
             "price = models.DecimalField(max_digits=10, decimal_places=2)", "name = models.CharField(unique=True, max_length=100)",
             "class AuthUser(models.Model)", "printed = models.DateTimeField()", "sold = models.IntegerField()"):
    assert want in text, (want, text)
assert "Unable to inspect" not in text, text
call_command("flush", interactive=False, verbosity=0)
assert Author.objects.count() == 0
print("ok")
