// A small client of the remoting protocol with JSON headers, and the topics and groups that the benchmarks need.
package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"sync"
	"time"
)

const (
	codePull         = 11
	codeSetOffset    = 15
	codeCreateTopic  = 17
	codeRoute        = 105
	codeCreateGroup  = 200
	codePop          = 200050
	codeAck          = 200051
	codeBatchAck     = 200151
	codeOK           = 0
	codeNotFound     = 19
	codePollTimeout  = 210
	protocolVersion  = 495
	routeKnownWithin = 30 * time.Second
)

type header struct {
	Code      int               `json:"code"`
	Language  string            `json:"language"`
	Version   int               `json:"version"`
	Opaque    int               `json:"opaque"`
	Flag      int               `json:"flag"`
	Remark    string            `json:"remark,omitempty"`
	ExtFields map[string]string `json:"extFields,omitempty"`
}

type response struct {
	header
	body []byte
}

type fields = map[string]string

// remote is one connection. Requests of several callers are pipelined.
type remote struct {
	connection net.Conn
	mutex      sync.Mutex
	pending    map[int]chan response
	next       int
	broken     error
}

func dial(address string) (*remote, error) {
	connection, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	r := &remote{connection: connection, pending: map[int]chan response{}}
	go r.read()
	return r, nil
}

func (r *remote) close() { r.connection.Close() }

// begin sends requests in one write and returns where their responses arrive, in the same order.
func (r *remote) begin(code int, requests []fields, bodies [][]byte) ([]chan response, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.broken != nil {
		return nil, r.broken
	}
	var out []byte
	replies := make([]chan response, len(requests))
	for i, request := range requests {
		r.next++
		replies[i] = make(chan response, 1)
		r.pending[r.next] = replies[i]
		head, err := json.Marshal(header{Code: code, Language: "JAVA", Version: protocolVersion, Opaque: r.next, ExtFields: request})
		if err != nil {
			return nil, err
		}
		var body []byte
		if bodies != nil {
			body = bodies[i]
		}
		out = binary.BigEndian.AppendUint32(out, uint32(4+len(head)+len(body)))
		out = binary.BigEndian.AppendUint32(out, uint32(len(head)))
		out = append(append(out, head...), body...)
	}
	_, err := r.connection.Write(out)
	return replies, err
}

// call sends one request and waits for its response.
func (r *remote) call(code int, request fields, body []byte) (response, error) {
	replies, err := r.begin(code, []fields{request}, [][]byte{body})
	if err != nil {
		return response{}, err
	}
	reply, open := <-replies[0]
	if !open {
		return response{}, fmt.Errorf("the connection was closed during request %d: %w", code, r.broken)
	}
	return reply, nil
}

// must is call for requests that have to succeed.
func (r *remote) must(code int, request fields, body []byte) (response, error) {
	reply, err := r.call(code, request, body)
	if err == nil && reply.Code != codeOK {
		err = fmt.Errorf("request %d: code %d %s", code, reply.Code, reply.Remark)
	}
	return reply, err
}

func (r *remote) read() {
	in := bufio.NewReaderSize(r.connection, 1<<18)
	for {
		reply, err := readResponse(in)
		r.mutex.Lock()
		if err != nil {
			r.broken = err
			for _, waiting := range r.pending {
				close(waiting)
			}
			r.mutex.Unlock()
			return
		}
		waiting := r.pending[reply.Opaque]
		delete(r.pending, reply.Opaque)
		r.mutex.Unlock()
		// Requests of the broker to this client have no one waiting.
		if waiting != nil {
			waiting <- reply
		}
	}
}

func readResponse(in io.Reader) (response, error) {
	var lengths [8]byte
	var reply response
	if _, err := io.ReadFull(in, lengths[:]); err != nil {
		return reply, err
	}
	rest := make([]byte, binary.BigEndian.Uint32(lengths[:4])-4)
	if _, err := io.ReadFull(in, rest); err != nil {
		return reply, err
	}
	size := binary.BigEndian.Uint32(lengths[4:]) & 0xffffff
	reply.body = rest[size:]
	err := json.Unmarshal(rest[:size], &reply.header)
	return reply, err
}

var brokerNamePattern = regexp.MustCompile(`"brokerName":"([^"]+)"`)

// prepare creates a topic for messages of one type, and groups that read it from the beginning. It returns the name of the
// broker.
func prepare(given arguments) (object, error) {
	broker, err := dial(given.Broker)
	if err != nil {
		return nil, err
	}
	defer broker.close()
	queues := strconv.Itoa(given.Queues)
	if _, err := broker.must(codeCreateTopic, fields{
		"topic": given.Topic, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues, "perm": "6",
		"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", "attributes": "+message.type=" + given.MessageType,
	}, nil); err != nil {
		return nil, err
	}
	for _, group := range given.Groups {
		config, _ := json.Marshal(object{
			"groupName": group, "consumeEnable": true, "consumeFromMinEnable": true, "consumeBroadcastEnable": true,
			"consumeMessageOrderly": false, "retryQueueNums": 1, "retryMaxTimes": 16, "brokerId": 0,
			"whichBrokerWhenConsumeSlowly": 1, "notifyConsumerIdsChangedEnable": true,
		})
		if _, err := broker.must(codeCreateGroup, fields{}, config); err != nil {
			return nil, err
		}
		for queue := range given.Queues {
			if _, err := broker.must(codeSetOffset, fields{
				"consumerGroup": group, "topic": given.Topic, "queueId": strconv.Itoa(queue), "commitOffset": "0",
			}, nil); err != nil {
				return nil, err
			}
		}
	}
	name, err := awaitRoute(given)
	return object{"broker_name": name}, err
}

func awaitRoute(given arguments) (string, error) {
	namesrv, err := dial(given.Namesrv)
	if err != nil {
		return "", err
	}
	defer namesrv.close()
	for started := time.Now(); time.Since(started) < routeKnownWithin; time.Sleep(50 * time.Millisecond) {
		reply, err := namesrv.call(codeRoute, fields{"topic": given.Topic}, nil)
		if err != nil {
			return "", err
		}
		if found := brokerNamePattern.FindSubmatch(reply.body); reply.Code == codeOK && found != nil {
			return string(found[1]), nil
		}
	}
	return "", fmt.Errorf("the name server knows no route of %s", given.Topic)
}
