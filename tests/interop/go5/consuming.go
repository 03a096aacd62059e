package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

var (
	viewsMutex sync.Mutex
	views      []*rocketmq.MessageView
)

func subscription(asked arguments) map[string]*rocketmq.FilterExpression {
	filter := rocketmq.SUB_ALL
	if asked.SQL != "" {
		filter = rocketmq.NewFilterExpressionWithType(asked.SQL, rocketmq.SQL92)
	} else if asked.Tags != "" {
		filter = rocketmq.NewFilterExpression(asked.Tags)
	}
	return map[string]*rocketmq.FilterExpression{asked.Topic: filter}
}

func startSimple(asked arguments) (reply, error) {
	consumer, err := rocketmq.NewSimpleConsumer(configuration(asked),
		rocketmq.WithSimpleAwaitDuration(time.Duration(asked.AwaitS)*time.Second),
		rocketmq.WithSimpleSubscriptionExpressions(subscription(asked)))
	if err != nil {
		return nil, err
	}
	if err := consumer.Start(); err != nil {
		return nil, err
	}
	add(asked.Name, consumer)
	return reply{}, nil
}

func simpleConsumer(name string) (rocketmq.SimpleConsumer, error) {
	consumer, known := find(name).(rocketmq.SimpleConsumer)
	if !known {
		return nil, fmt.Errorf("no simple consumer %q", name)
	}
	return consumer, nil
}

func receive(asked arguments) (reply, error) {
	consumer, err := simpleConsumer(asked.Consumer)
	if err != nil {
		return nil, err
	}
	received, err := consumer.Receive(context.Background(), asked.Count, time.Duration(asked.InvisibleS)*time.Second)
	var status *rocketmq.ErrRpcStatus
	// This client alone reports an empty answer as an error.
	if err != nil && !(errors.As(err, &status) && status.GetCode() == int32(v2.Code_MESSAGE_NOT_FOUND)) {
		return nil, err
	}
	messages := make([]reply, 0, len(received))
	viewsMutex.Lock()
	defer viewsMutex.Unlock()
	for _, view := range received {
		described := describe(view)
		described["view"] = len(views)
		views = append(views, view)
		messages = append(messages, described)
	}
	return reply{"messages": messages}, nil
}

func view(number int) *rocketmq.MessageView {
	viewsMutex.Lock()
	defer viewsMutex.Unlock()
	return views[number]
}

func ack(asked arguments) (reply, error) {
	consumer, err := simpleConsumer(asked.Consumer)
	if err != nil {
		return nil, err
	}
	return reply{}, consumer.Ack(context.Background(), view(asked.View))
}

func change(asked arguments) (reply, error) {
	consumer, err := simpleConsumer(asked.Consumer)
	if err != nil {
		return nil, err
	}
	return reply{}, consumer.ChangeInvisibleDuration(view(asked.View), time.Duration(asked.InvisibleS)*time.Second)
}

func startPush(asked arguments) (reply, error) {
	handle := func(view *rocketmq.MessageView) rocketmq.ConsumerResult {
		event := describe(view)
		event["event"] = "message"
		event["consumer"] = asked.Name
		writeLine(event)
		time.Sleep(time.Duration(asked.BusyMs) * time.Millisecond)
		if view.GetDeliveryAttempt() <= asked.Failures {
			return rocketmq.FAILURE
		}
		return rocketmq.SUCCESS
	}
	consumer, err := rocketmq.NewPushConsumer(configuration(asked),
		rocketmq.WithPushSubscriptionExpressions(subscription(asked)),
		rocketmq.WithPushMessageListener(&rocketmq.FuncMessageListener{Consume: handle}),
		rocketmq.WithPushConsumptionThreadCount(20),
		rocketmq.WithPushMaxCacheMessageCount(1024))
	if err != nil {
		return nil, err
	}
	if err := consumer.Start(); err != nil {
		return nil, err
	}
	add(asked.Name, consumer)
	return reply{}, nil
}

func describe(view *rocketmq.MessageView) reply {
	described := reply{
		"received_ms":   time.Now().UnixMilli(),
		"message_id":    view.GetMessageId(),
		"topic":         view.GetTopic(),
		"body":          string(view.GetBody()),
		"tag":           view.GetTag(),
		"keys":          view.GetKeys(),
		"message_group": view.GetMessageGroup(),
		"properties":    view.GetProperties(),
		"attempt":       view.GetDeliveryAttempt(),
		"deliver_at_ms": nil,
	}
	if due := view.GetDeliveryTimestamp(); due != nil {
		described["deliver_at_ms"] = due.UnixMilli()
	}
	return described
}
