// Receivers that wait for messages that do not come, held open between commands.
package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

// How long all calls must have been open before they count as waiting.
const settled = 2 * time.Second

var waiting struct {
	receivers []*receiver
	clients   []*client
	end       context.CancelFunc
	working   workers
}

// waitConnect opens the connections, which the memory of waiting receivers does not include.
func waitConnect(given arguments) (object, error) {
	clients, err := connectAll(given, given.Groups...)
	if err != nil {
		return nil, err
	}
	waiting.clients = clients
	for _, c := range clients {
		r, err := newReceiver(c, given)
		if err != nil {
			return nil, err
		}
		waiting.receivers = append(waiting.receivers, r)
	}
	return object{"connections": len(clients)}, nil
}

// waitOpen opens `count` receive calls and returns when they have been waiting for a while.
func waitOpen(given arguments) (object, error) {
	until, end := context.WithCancel(context.Background())
	waiting.end = end
	var open, ended atomic.Int64
	var failed failures
	for number := range given.Count {
		r := waiting.receivers[number%len(waiting.receivers)]
		waiting.working.start(func() {
			open.Add(1)
			err := r.each(until, func(*v2.Message) { failed.add(fmt.Errorf("a message")) })
			if until.Err() == nil {
				ended.Add(1)
				if err != nil {
					failed.add(err)
				}
			}
		})
		if number%100 == 99 {
			time.Sleep(20 * time.Millisecond)
		}
	}
	time.Sleep(settled)
	return object{"waiting": open.Load() - ended.Load(), "failed": failed.countNow(), "first_failure": failed.text()}, nil
}

func waitClose(arguments) (object, error) {
	if waiting.end != nil {
		waiting.end()
	}
	waiting.working.wait()
	closeAll(waiting.clients)
	waiting.receivers, waiting.clients, waiting.end = nil, nil, nil
	return object{}, nil
}
