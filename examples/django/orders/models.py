"""An order of a customer."""

from django.db import models


class Order(models.Model):
    """`confirmed_at`: when the mail was sent; null until then."""

    email = models.EmailField()
    amount = models.PositiveIntegerField()
    confirmed_at = models.DateTimeField(null=True)
