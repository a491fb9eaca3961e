"""The pages of the sample project."""

from django.contrib import admin
from django.urls import path
from orders import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("orders/", views.create),
    path("tasks/<str:key>/", views.task),
]
