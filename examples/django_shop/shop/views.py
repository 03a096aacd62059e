"""What browsers and programs ask for."""

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_POST

from shop import timers
from shop.models import Order


@require_POST
@transaction.atomic
def place(request: HttpRequest) -> JsonResponse:
    """Place an order."""
    order = Order.objects.create(number=request.POST["order"])
    timers.close_unless_paid(order)
    return JsonResponse({"order": order.number, "state": order.state}, status=201)


@require_POST
def pay(request: HttpRequest, number: str) -> JsonResponse:
    """Pay an order, unless it was closed."""
    paid = Order.objects.filter(number=number, state=Order.State.PLACED).update(state=Order.State.PAID)
    order = get_object_or_404(Order, number=number)
    if paid and order.timer:
        timers.cancel(order)
    return JsonResponse({"order": order.number, "state": order.state}, status=200 if paid else 409)


def show(request: HttpRequest, number: str) -> JsonResponse:
    """Show an order."""
    order = get_object_or_404(Order, number=number)
    return JsonResponse({"order": order.number, "state": order.state})
