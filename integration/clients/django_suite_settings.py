"""Settings of Django's own tests, which integration/suites_django_test.go runs: two databases on the server of PGHOST."""

import os


def database(name):
    return {"ENGINE": "django.db.backends.postgresql", "NAME": name, "HOST": os.environ["PGHOST"], "PORT": os.environ["PGPORT"],
            "USER": os.environ["PGUSER"], "PASSWORD": os.environ["PGPASSWORD"]}


DATABASES = {"default": database(os.environ["PGDATABASE"]), "other": database(os.environ["PGDATABASE"] + "_other")}
SECRET_KEY = "of the tests"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
USE_TZ = False
TEST_RUNNER = "django_suite_runner.Runner"
