// Receivers that acknowledge every message with a call of its own, as official clients do.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/protobuf/types/known/durationpb"
)

// So many failures before the first message end a run, which takes a few seconds.
const hopeless = 5_000

type receiver struct {
	*client
	request *v2.ReceiveMessageRequest
	pollS   float64
}

func newReceiver(c *client, given arguments) (*receiver, error) {
	broker, err := c.brokerOf(given.Address, given.Topic)
	if err != nil {
		return nil, err
	}
	queue := &v2.MessageQueue{
		Topic: &v2.Resource{Name: given.Topic}, Id: -1, Permission: v2.Permission_READ, Broker: broker,
		AcceptMessageTypes: []v2.MessageType{v2.MessageType_NORMAL},
	}
	return &receiver{c, &v2.ReceiveMessageRequest{
		Group: c.group, MessageQueue: queue, FilterExpression: everything, BatchSize: int32(given.Batch),
		InvisibleDuration:  durationpb.New(seconds(given.InvisibleS)),
		LongPollingTimeout: durationpb.New(seconds(given.PollS)),
	}, given.PollS}, nil
}

func seconds(count float64) time.Duration { return time.Duration(count * float64(time.Second)) }

// each makes one call and passes on every message as it comes. No message is not an error.
func (r *receiver) each(parent context.Context, use func(*v2.Message)) error {
	call, cancel := context.WithTimeout(r.labelled(parent), seconds(r.pollS)+requestTimeout)
	defer cancel()
	stream, err := r.service.ReceiveMessage(call, r.request)
	if err != nil {
		return err
	}
	for {
		reply, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch content := reply.GetContent().(type) {
		case *v2.ReceiveMessageResponse_Status:
			if content.Status.GetCode() != v2.Code_MESSAGE_NOT_FOUND {
				if err := problem(content.Status); err != nil {
					return err
				}
			}
		case *v2.ReceiveMessageResponse_Message:
			use(content.Message)
		}
	}
}

func (r *receiver) ack(message *v2.Message) error {
	call, cancel := context.WithTimeout(r.labelled(context.Background()), callTimeout)
	defer cancel()
	properties := message.GetSystemProperties()
	entry := &v2.AckMessageEntry{MessageId: properties.GetMessageId(), ReceiptHandle: properties.GetReceiptHandle()}
	reply, err := r.service.AckMessage(call, &v2.AckMessageRequest{
		Group: r.group, Topic: message.GetTopic(), Entries: []*v2.AckMessageEntry{entry}})
	if err != nil {
		return err
	}
	for _, result := range reply.GetEntries() {
		if err := problem(result.GetStatus()); err != nil {
			return err
		}
	}
	return problem(reply.GetStatus())
}

// ackAll acknowledges the messages of one call side by side and returns how many were.
func (r *receiver) ackAll(messages []*v2.Message, failed *failures) int {
	var acked atomic.Int64
	var working workers
	for _, message := range messages {
		working.start(func() {
			if err := r.ack(message); err != nil {
				failed.add(fmt.Errorf("ack: %w", err))
				return
			}
			acked.Add(1)
		})
	}
	working.wait()
	return int(acked.Load())
}

// receive drains a topic: until `count` messages are acknowledged, or `timeout_s` have passed.
func receive(given arguments) (object, error) {
	clients, err := connectAll(given, given.Group)
	if err != nil {
		return nil, err
	}
	defer closeAll(clients)
	var receivers []*receiver
	for _, c := range clients {
		r, err := newReceiver(c, given)
		if err != nil {
			return nil, err
		}
		receivers = append(receivers, r)
	}
	until, stop := context.WithTimeout(context.Background(), seconds(given.TimeoutS))
	defer stop()
	ids := make([][]string, given.Connections*given.Callers)
	var acked, calls, tookNs atomic.Int64
	var failed failures
	var working workers
	started := time.Now()
	for caller := range ids {
		r := receivers[caller%len(receivers)]
		working.start(func() {
			for until.Err() == nil {
				var batch []*v2.Message
				err := r.each(until, func(message *v2.Message) { batch = append(batch, message) })
				if err != nil && until.Err() == nil {
					failed.add(fmt.Errorf("receive: %w", err))
					time.Sleep(pauseAfterFailure)
					if calls.Load() == 0 && failed.countNow() > hopeless {
						stop()
					}
				}
				if len(batch) == 0 {
					continue
				}
				calls.Add(1)
				for _, message := range batch {
					ids[caller] = append(ids[caller], message.GetSystemProperties().GetMessageId())
				}
				if acked.Add(int64(r.ackAll(batch, &failed))) >= int64(given.Count) {
					tookNs.CompareAndSwap(0, time.Since(started).Nanoseconds())
					stop()
				}
			}
		})
	}
	working.wait()
	tookNs.CompareAndSwap(0, time.Since(started).Nanoseconds())
	distinct := map[string]bool{}
	received := 0
	for _, part := range ids {
		received += len(part)
		for _, id := range part {
			distinct[id] = true
		}
	}
	return object{
		"received": received, "acked": acked.Load(), "repeated": received - len(distinct), "calls": calls.Load(),
		"took_ns": tookNs.Load(), "failed": failed.count, "first_failure": failed.text(),
	}, nil
}
