package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
)

var transactions sync.Map

var resolutions = map[string]rocketmq.TransactionResolution{
	"commit":   rocketmq.COMMIT,
	"rollback": rocketmq.ROLLBACK,
	"unknown":  rocketmq.UNKNOWN,
}

func startProducer(asked arguments) (reply, error) {
	options := []rocketmq.ProducerOption{rocketmq.WithTopics(asked.Topics...)}
	if asked.CheckedAs != "" {
		options = append(options, rocketmq.WithTransactionChecker(&rocketmq.TransactionChecker{
			Check: func(view *rocketmq.MessageView) rocketmq.TransactionResolution {
				event := describe(view)
				event["event"] = "check"
				event["producer"] = asked.Name
				writeLine(event)
				return resolutions[asked.CheckedAs]
			},
		}))
	}
	producer, err := rocketmq.NewProducer(configuration(asked), options...)
	if err != nil {
		return nil, err
	}
	if err := producer.Start(); err != nil {
		return nil, err
	}
	add(asked.Name, producer)
	return reply{}, nil
}

func send(asked arguments) (reply, error) {
	producer, known := find(asked.Producer).(rocketmq.Producer)
	if !known {
		return nil, fmt.Errorf("no producer %q", asked.Producer)
	}
	var receipts []*rocketmq.SendReceipt
	var err error
	if asked.Transaction == "" {
		receipts, err = producer.Send(context.Background(), message(asked))
	} else {
		transaction := producer.BeginTransaction()
		receipts, err = producer.SendWithTransaction(context.Background(), message(asked), transaction)
		transactions.Store(asked.Transaction, transaction)
	}
	if err != nil {
		return nil, err
	}
	return reply{"message_id": receipts[0].MessageID, "recall_handle": receipts[0].RecallHandle}, nil
}

func message(asked arguments) *rocketmq.Message {
	sent := &rocketmq.Message{Topic: asked.Topic, Body: []byte(asked.Body)}
	if asked.Tag != "" {
		sent.SetTag(asked.Tag)
	}
	if len(asked.Keys) > 0 {
		sent.SetKeys(asked.Keys...)
	}
	if asked.MessageGroup != "" {
		sent.SetMessageGroup(asked.MessageGroup)
	}
	if asked.DeliverAtMs != 0 {
		sent.SetDelayTimestamp(time.UnixMilli(asked.DeliverAtMs))
	}
	for key, value := range asked.Properties {
		sent.AddProperty(key, value)
	}
	return sent
}

func endTransaction(asked arguments) (reply, error) {
	found, known := transactions.Load(asked.Transaction)
	if !known {
		return nil, fmt.Errorf("no transaction %q", asked.Transaction)
	}
	transaction := found.(rocketmq.Transaction)
	if asked.Resolution == "commit" {
		return reply{}, transaction.Commit()
	}
	return reply{}, transaction.RollBack()
}

func recall(asked arguments) (reply, error) {
	producer, known := find(asked.Producer).(rocketmq.Producer)
	if !known {
		return nil, fmt.Errorf("no producer %q", asked.Producer)
	}
	id, err := producer.Recall(context.Background(), asked.Topic, asked.Handle)
	return reply{"message_id": id}, err
}
