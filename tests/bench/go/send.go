// Sends from many callers, each waiting for its reply.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const pauseAfterFailure = 10 * time.Millisecond

// send sends `count` messages, or for `seconds`.
func send(given arguments) (object, error) {
	clients, err := connectAll(given)
	if err != nil {
		return nil, err
	}
	defer closeAll(clients)
	body := bytes.Repeat([]byte("x"), given.Size)
	latenciesNs := make([][]int64, given.Connections*given.Callers)
	var claimed atomic.Int64
	var failed failures
	var working workers
	started := time.Now()
	for caller := range latenciesNs {
		c := clients[caller%len(clients)]
		working.start(func() {
			for {
				number := claimed.Add(1) - 1
				if given.Seconds > 0 && time.Since(started).Seconds() >= given.Seconds ||
					given.Seconds == 0 && number >= int64(given.Count) {
					return
				}
				if given.Rate > 0 {
					time.Sleep(time.Until(started.Add(time.Duration(float64(number) / given.Rate * 1e9))))
				}
				sentAt := time.Now()
				if err := c.send(given.Topic, body, nil); err != nil {
					failed.add(err)
					time.Sleep(pauseAfterFailure)
					continue
				}
				latenciesNs[caller] = append(latenciesNs[caller], time.Since(sentAt).Nanoseconds())
			}
		})
	}
	working.wait()
	tookNs := time.Since(started).Nanoseconds()
	sorted := joined(latenciesNs)
	return object{
		"sent": len(sorted), "took_ns": tookNs, "failed": failed.count, "first_failure": failed.text(),
		"p50_ns": quantile(sorted, .5), "p99_ns": quantile(sorted, .99), "max_ns": quantile(sorted, 1),
	}, nil
}

// send sends one message, delayed if `due` is given.
func (c *client) send(topic string, body []byte, due *timestamppb.Timestamp) error {
	call, cancel := context.WithTimeout(c.labelled(context.Background()), callTimeout)
	defer cancel()
	id := newMessageID()
	message := &v2.Message{
		Topic: &v2.Resource{Name: topic},
		Body:  body,
		SystemProperties: &v2.SystemProperties{
			MessageId: id, BodyEncoding: v2.Encoding_IDENTITY, MessageType: v2.MessageType_NORMAL,
			BornTimestamp: timestamppb.Now(), BornHost: "bench",
		},
	}
	if due != nil {
		message.SystemProperties.MessageType = v2.MessageType_DELAY
		message.SystemProperties.DeliveryTimestamp = due
	}
	reply, err := c.service.SendMessage(call, &v2.SendMessageRequest{Messages: []*v2.Message{message}})
	if err != nil {
		return err
	}
	if err := problem(reply.GetStatus()); err != nil {
		return err
	}
	if len(reply.GetEntries()) != 1 {
		return errors.New("not one entry in the reply")
	}
	entry := reply.GetEntries()[0]
	if entry.GetMessageId() != id {
		return fmt.Errorf("sent %s, got the reply of %s", id, entry.GetMessageId())
	}
	return problem(entry.GetStatus())
}
