"""The addresses of the shop."""

from django.urls import path

from shop import views

urlpatterns = [
    path("orders/", views.place),
    path("orders/<str:number>/", views.show),
    path("orders/<str:number>/pay/", views.pay),
]
