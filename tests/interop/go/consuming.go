package main

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

const shownBodyBytes = 200

var consumers = map[string]rocketmq.PushConsumer{}

func startConsumer(asked arguments) (any, error) {
	model := consumer.Clustering
	if asked.Broadcasting {
		model = consumer.BroadCasting
	}
	started, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer(primitive.NamesrvAddr{asked.Namesrv}),
		consumer.WithGroupName(asked.Group),
		consumer.WithInstance(asked.Name),
		consumer.WithConsumerModel(model),
		consumer.WithConsumerOrder(asked.Orderly),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	if err != nil {
		return nil, err
	}
	expression := asked.Expression
	if expression == "" {
		expression = "*"
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: expression}
	err = started.Subscribe(asked.Topic, selector,
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				writeLine(messageJSON(asked.Name, message))
			}
			return consumer.ConsumeSuccess, nil
		})
	if err != nil {
		return nil, err
	}
	if err := started.Start(); err != nil {
		return nil, err
	}
	consumers[asked.Name] = started
	return map[string]any{}, nil
}

func stopConsumer(asked arguments) (any, error) {
	running, known := consumers[asked.Name]
	if !known {
		return nil, fmt.Errorf("no consumer %q", asked.Name)
	}
	delete(consumers, asked.Name)
	return map[string]any{}, running.Shutdown()
}

func stopAll() error {
	for _, running := range consumers {
		if err := running.Shutdown(); err != nil {
			return err
		}
	}
	for _, running := range producers {
		if err := running.Shutdown(); err != nil {
			return err
		}
	}
	return nil
}

func messageJSON(name string, message *primitive.MessageExt) any {
	digest := sha1.Sum(message.Body)
	event := map[string]any{
		"event":        "message",
		"consumer":     name,
		"topic":        message.Topic,
		"queue":        message.Queue.QueueId,
		"queue_offset": message.QueueOffset,
		"msg_id":       message.MsgId,
		"tags":         message.GetTags(),
		"keys":         message.GetKeys(),
		"properties":   message.GetProperties(),
		"born_ms":      message.BornTimestamp,
		"stored_ms":    message.StoreTimestamp,
		"seen_ms":      time.Now().UnixMilli(),
		"size_bytes":   len(message.Body),
		"sha1":         hex.EncodeToString(digest[:]),
	}
	if len(message.Body) <= shownBodyBytes {
		event["body"] = string(message.Body)
	}
	return event
}
