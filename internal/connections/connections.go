/*
Copyright The AlterShield Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

// Package connections bounds how many connections to a port are open at once, so that
// nobody keeps others out by having many.
package connections

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// Options bound connections.
type Options struct {
	// Max is how many are open at once.
	Max int
	// PerSource is how many of them one source has before others when there are Max; of
	// one with as many its own give way to its new ones. 0 is no limit but Max.
	PerSource int
	// Source is the source of an address as host:port; nil is SourceOf.
	Source func(remote string) netip.Addr
	// First is for how long a connection waits for the first byte of its first request,
	// in place of the deadline that an http.Server sets for its header; 0 is that
	// deadline. The deadline counts from the first byte then.
	First time.Duration
	// Known says that a source has authenticated before; nil knows none.
	Known func(source netip.Addr) bool
	// GaveWay is called for each connection that was closed to make room.
	GaveWay func(remote net.Addr)
}

// Listener is a listener that bounds how many connections are open at once. When there
// are as many, one that is in no request gives way to the new one. First a stranger: a
// connection that has delivered no request yet; then one that is idle between requests.
// In either case it is that of the source which has most of them, the one that has
// waited longest; of sources that have authenticated before only when there are no
// others. So neither a silent or slow client nor one with many connections keeps others
// out: a request is delivered within milliseconds. New connections wait only when all
// are in requests. Safe for concurrent use.
type Listener struct {
	net.Listener
	options Options

	mu sync.Mutex
	// changed is signalled when a connection ends or becomes idle, and when the
	// listener is closed.
	changed *sync.Cond
	open    int
	// of is how many each source has.
	of map[netip.Addr]int
	// waiting are those in no request.
	waiting [waits]map[netip.Addr]*list.List // of *Connection, the longest first
	// turn counts up, to tell who has waited longer.
	turn   uint64
	closed bool
}

// What connections wait for, in the order in which they give way.
const (
	stranger = iota
	idle
	waits
)

// Connection is one of a Listener.
type Connection struct {
	net.Conn
	listener *Listener
	source   netip.Addr
	// place is where it waits, nil when it is in a request; for what, and since which
	// turn. ended is whether it counts no more. All are guarded by Listener.mu.
	place *list.Element
	waits int
	since uint64
	ended bool

	// begun says how far its first request is, secured that the handshake is over, and
	// header is the time for the header. All are guarded by reading.
	reading sync.Mutex
	begun   progress
	secured bool
	header  time.Duration
}

// progress is how far the first request of a connection is.
type progress int

const (
	// handshaking is before an http.Server sets the deadline of the first header.
	handshaking progress = iota
	// silent is before the first byte after that.
	silent
	begun
)

// SetReadDeadline implements net.Conn. An http.Server over TLS sets a deadline for the
// handshake, none after it, and then that of the first header.
func (c *Connection) SetReadDeadline(t time.Time) error {
	c.reading.Lock()
	defer c.reading.Unlock()
	if first := c.listener.options.First; first > 0 && c.secured && c.begun == handshaking && !t.IsZero() {
		c.begun, c.header = silent, time.Until(t)
		return c.Conn.SetReadDeadline(time.Now().Add(first))
	}
	if c.begun == silent {
		c.begun = begun
	}
	c.secured = c.secured || t.IsZero()
	return c.Conn.SetReadDeadline(t)
}

// Read implements net.Conn. With the first byte of the first request its header has to
// come in time.
func (c *Connection) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.reading.Lock()
	defer c.reading.Unlock()
	if n > 0 && c.begun == silent {
		c.begun = begun
		if failed := c.Conn.SetReadDeadline(time.Now().Add(c.header)); failed != nil && err == nil {
			err = failed
		}
	}
	return n, err
}

// New bounds the connections of a listener.
func New(l net.Listener, o Options) *Listener {
	if o.Source == nil {
		o.Source = SourceOf
	}
	if o.Known == nil {
		o.Known = func(netip.Addr) bool { return false }
	}
	c := &Listener{Listener: l, options: o, of: map[netip.Addr]int{}}
	for w := range c.waiting {
		c.waiting[w] = map[netip.Addr]*list.List{}
	}
	c.changed = sync.NewCond(&c.mu)
	return c
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &Connection{Conn: accepted, listener: l, source: l.options.Source(accepted.RemoteAddr().String())}
		left := l.admit(c)
		if left != nil {
			l.options.GaveWay(left.RemoteAddr())
			// It ends for whoever reads it.
			_ = left.Conn.Close()
		}
		if left != c {
			return c, nil
		}
	}
}

// admit counts a connection in once there is a place for it, or none is needed any more
// because no others will come. It returns the one that has to leave, if any, which is
// counted out already. That is the new one itself where all places are taken and its
// source has too many, all of them in requests: others shall not wait for that.
func (l *Listener) admit(c *Connection) (left *Connection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.open >= l.options.Max && !l.closed {
		if l.options.PerSource > 0 && l.of[c.source] >= l.options.PerSource {
			if left = l.leavingOf(c.source); left == nil {
				return c
			}
		} else if left = l.leaving(); left == nil {
			l.changed.Wait()
			continue
		}
		l.remove(left)
	}
	l.open++
	l.of[c.source]++
	l.wait(c, stranger)
	return left
}

// leaving is the connection that has to give way; nil when all are in requests. The
// lock is held.
func (l *Listener) leaving() *Connection {
	for _, waiting := range l.waiting {
		var of *list.List
		ofKnown := false
		for source, these := range waiting {
			known := l.options.Known(source)
			switch {
			case of == nil, ofKnown && !known:
			case ofKnown != known, these.Len() < of.Len():
				continue
			case these.Len() == of.Len() && first(these).since > first(of).since:
				continue
			}
			of, ofKnown = these, known
		}
		if of != nil {
			return first(of)
		}
	}
	return nil
}

// leavingOf is the one of a source that has to give way; nil when all are in requests.
// The lock is held.
func (l *Listener) leavingOf(source netip.Addr) *Connection {
	for _, waiting := range l.waiting {
		if these := waiting[source]; these != nil {
			return first(these)
		}
	}
	return nil
}

func first(of *list.List) *Connection {
	return of.Front().Value.(*Connection) //nolint:errcheck // the list holds nothing else
}

// wait has a connection wait, as the last one. The lock is held.
func (l *Listener) wait(c *Connection, waits int) {
	l.turn++
	c.waits, c.since = waits, l.turn
	if l.waiting[waits][c.source] == nil {
		l.waiting[waits][c.source] = list.New()
	}
	c.place = l.waiting[waits][c.source].PushBack(c)
}

// leave has a connection wait no more. The lock is held.
func (l *Listener) leave(c *Connection) {
	if c.place == nil {
		return
	}
	of := l.waiting[c.waits][c.source]
	of.Remove(c.place)
	c.place = nil
	if of.Len() == 0 {
		delete(l.waiting[c.waits], c.source)
	}
}

// remove counts a connection out, once. The lock is held.
func (l *Listener) remove(c *Connection) {
	if c.ended {
		return
	}
	c.ended = true
	l.leave(c)
	l.open--
	if l.of[c.source]--; l.of[c.source] == 0 {
		delete(l.of, c.source)
	}
	l.changed.Broadcast()
}

// Close implements net.Listener: no new connections; those that are open stay.
// It may be called again.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	l.changed.Broadcast()
	return l.Listener.Close()
}

// Drain waits until no connection is open; false when the context ends before.
func (l *Listener) Drain(ctx context.Context) bool {
	defer context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.changed.Broadcast()
	})()
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.open > 0 && ctx.Err() == nil {
		l.changed.Wait()
	}
	return l.open == 0
}

// Close implements net.Conn.
func (c *Connection) Close() error {
	c.listener.mu.Lock()
	c.listener.remove(c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}

// Delivered says that the connection delivered a request, of those that count, and so
// gives way to none while that is handled.
func (c *Connection) Delivered() {
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	c.listener.leave(c)
}

// Changed follows the state that an http.Server gives to a connection which is kept
// alive: after a request it is idle, and it is at the end of the queue whenever it
// begins another one.
func (c *Connection) Changed(state http.ConnState) {
	l := c.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case c.ended:
	case state == http.StateIdle && c.place == nil:
		l.wait(c, idle)
		l.changed.Broadcast()
	case state == http.StateActive && c.place != nil && c.waits == idle:
		l.leave(c)
		l.wait(c, idle)
	}
}

// From is a connection of a Listener as an http.Server has it, over TLS or not; nil when
// it is none.
func From(c net.Conn) *Connection {
	if secured, ok := c.(*tls.Conn); ok {
		c = secured.NetConn()
	}
	connection, _ := c.(*Connection)
	return connection
}

// connectionKey is the key of the connection in the context of a request.
type connectionKey struct{}

// With is the ConnContext of an http.Server that serves connections of a Listener.
func With(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, From(c))
}

// Of gives the connection of a request; nil when it came otherwise.
func Of(ctx context.Context) *Connection {
	c, _ := ctx.Value(connectionKey{}).(*Connection)
	return c
}
