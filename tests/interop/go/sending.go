package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const sendTimeout = 10 * time.Second

var producers = map[string]rocketmq.Producer{}

// send sends count messages in one of the modes sync, async, oneway, batch and selector (message n goes to queue n
// modulo 4).
func send(asked arguments) (any, error) {
	sender, err := producerOf(asked)
	if err != nil {
		return nil, err
	}
	messages := make([]*primitive.Message, asked.Count)
	for i := range messages {
		messages[i] = buildMessage(asked, asked.First+i)
	}
	switch asked.Mode {
	case "sync", "selector":
		return sendEach(sender, messages)
	case "async":
		return sendAsync(sender, messages)
	case "oneway":
		for _, message := range messages {
			if err := sender.SendOneWay(context.Background(), message); err != nil {
				return nil, err
			}
		}
		return map[string]any{"results": []any{}}, nil
	case "batch":
		result, err := sender.SendSync(context.Background(), messages...)
		if err != nil {
			return nil, err
		}
		return map[string]any{"results": []any{sendJSON(result)}}, nil
	}
	return nil, fmt.Errorf("no mode %q", asked.Mode)
}

func sendEach(sender rocketmq.Producer, messages []*primitive.Message) (any, error) {
	results := make([]any, 0, len(messages))
	for _, message := range messages {
		result, err := sender.SendSync(context.Background(), message)
		if err != nil {
			return nil, err
		}
		results = append(results, sendJSON(result))
	}
	return map[string]any{"results": results}, nil
}

func sendAsync(sender rocketmq.Producer, messages []*primitive.Message) (any, error) {
	results := make([]any, len(messages))
	failures := make([]error, len(messages))
	var open sync.WaitGroup
	for i, message := range messages {
		open.Add(1)
		answered := func(_ context.Context, result *primitive.SendResult, err error) {
			defer open.Done()
			if failures[i] = err; err == nil {
				results[i] = sendJSON(result)
			}
		}
		if err := sender.SendAsync(context.Background(), answered, message); err != nil {
			return nil, err
		}
	}
	open.Wait()
	for _, err := range failures {
		if err != nil {
			return nil, err
		}
	}
	return map[string]any{"results": results}, nil
}

func producerOf(asked arguments) (rocketmq.Producer, error) {
	// A selector that takes the queue from the message would send all others to queue 0.
	kind := strconv.FormatBool(asked.Mode == "selector")
	if sender, known := producers[kind]; known {
		return sender, nil
	}
	options := []producer.Option{
		producer.WithNameServer(primitive.NamesrvAddr{asked.Namesrv}),
		producer.WithGroupName("interop_go_" + kind),
		producer.WithInstanceName("go-producer-" + kind),
		producer.WithSendMsgTimeout(sendTimeout),
		producer.WithRetry(0),
	}
	if asked.Mode == "selector" {
		options = append(options, producer.WithQueueSelector(producer.NewHashQueueSelector()))
	}
	sender, err := rocketmq.NewProducer(options...)
	if err != nil {
		return nil, err
	}
	if err := sender.Start(); err != nil {
		return nil, err
	}
	producers[kind] = sender
	return sender, nil
}

func buildMessage(asked arguments, number int) *primitive.Message {
	body := []byte(fmt.Sprintf("%s-%d", asked.Prefix, number))
	if asked.SizeBytes > 0 {
		padded := make([]byte, asked.SizeBytes)
		copy(padded, body)
		body = padded
	}
	message := primitive.NewMessage(asked.Topic, body)
	if len(asked.Tags) > 0 {
		message.WithTag(asked.Tags[number%len(asked.Tags)])
	}
	if asked.Keys != "" {
		message.WithKeys(strings.Fields(strings.ReplaceAll(asked.Keys, "%d", strconv.Itoa(number))))
	}
	for name, value := range asked.Properties {
		message.WithProperty(name, value)
	}
	if asked.Mode == "selector" {
		message.WithShardingKey(strconv.Itoa(number % 4))
	}
	return message
}

func sendJSON(result *primitive.SendResult) any {
	return map[string]any{
		"status":        result.Status,
		"msg_id":        result.MsgID,
		"offset_msg_id": result.OffsetMsgID,
		"queue":         result.MessageQueue.QueueId,
		"broker":        result.MessageQueue.BrokerName,
		"queue_offset":  result.QueueOffset,
	}
}
