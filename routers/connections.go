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

package routers

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"sync"
)

// connections is a listener that bounds how many connections are open at once.
// When there are as many, a stranger gives way to the new one: a connection that has
// delivered no authenticated request yet, the oldest one of the source that has most
// of them; of sources that have authenticated before only when there are no others.
// So neither a silent or slow client nor one with many connections keeps others out: a
// valid request is recognized within milliseconds. New connections wait only when
// there are no strangers. Safe for concurrent use.
type connections struct {
	net.Listener
	max int
	// known says that a source has authenticated before.
	known func(source netip.Addr) bool
	// gaveWay is called for each stranger that was closed.
	gaveWay func(remote net.Addr)

	mu sync.Mutex
	// changed is signalled when a connection ends, and when the listener is
	// closed.
	changed *sync.Cond
	open    int
	// strangers among those that are open, of *connection, by source, the oldest
	// first.
	strangers map[netip.Addr]*list.List
	closed    bool
}

// connection is one of connections.
type connection struct {
	net.Conn
	of     *connections
	source netip.Addr
	// stranger is its place among strangers, nil when it is none; ended is
	// whether it counts no more. Both are guarded by connections.mu.
	stranger *list.Element
	ended    bool
}

func newConnections(l net.Listener, limit int, known func(netip.Addr) bool, gaveWay func(net.Addr)) *connections {
	c := &connections{Listener: l, max: limit, known: known, gaveWay: gaveWay, strangers: map[netip.Addr]*list.List{}}
	c.changed = sync.NewCond(&c.mu)
	return c
}

// Accept implements net.Listener.
func (l *connections) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: accepted, of: l, source: sourceOf(accepted.RemoteAddr().String())}
	if left := l.admit(c); left != nil {
		l.gaveWay(left.RemoteAddr())
		// It ends for whoever reads it.
		_ = left.Conn.Close()
	}
	return c, nil
}

// admit counts a connection in once there is a place for it, or none is needed
// any more because no others will come. It returns the one that has to leave, if
// any, which is counted out already.
func (l *connections) admit(c *connection) (left *connection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.open >= l.max && !l.closed {
		if left = l.leaving(); left != nil {
			l.remove(left)
			continue
		}
		l.changed.Wait()
	}
	l.open++
	if l.strangers[c.source] == nil {
		l.strangers[c.source] = list.New()
	}
	c.stranger = l.strangers[c.source].PushBack(c)
	return left
}

// leaving is the stranger that has to give way; nil when there is none. The lock is
// held.
func (l *connections) leaving() *connection {
	var of *list.List
	ofKnown := false
	for source, strangers := range l.strangers {
		known := l.known(source)
		if of == nil || ofKnown && !known || ofKnown == known && strangers.Len() > of.Len() {
			of, ofKnown = strangers, known
		}
	}
	if of == nil {
		return nil
	}
	return of.Front().Value.(*connection) //nolint:errcheck // the list holds nothing else
}

// remove counts a connection out, once. The lock is held.
func (l *connections) remove(c *connection) {
	if c.ended {
		return
	}
	c.ended = true
	l.know(c)
	l.open--
	l.changed.Broadcast()
}

// know takes a connection from the strangers. The lock is held.
func (l *connections) know(c *connection) {
	if c.stranger == nil {
		return
	}
	of := l.strangers[c.source]
	of.Remove(c.stranger)
	c.stranger = nil
	if of.Len() == 0 {
		delete(l.strangers, c.source)
	}
}

// Close implements net.Listener: no new connections; those that are open stay.
// It may be called again.
func (l *connections) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	l.changed.Broadcast()
	return l.Listener.Close()
}

// drain waits until no connection is open; false when the context ends before.
func (l *connections) drain(ctx context.Context) bool {
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
func (c *connection) Close() error {
	c.of.mu.Lock()
	c.of.remove(c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// authenticated says that the connection delivered an authenticated request, so
// that it gives way to none.
func (c *connection) authenticated() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.of.know(c)
}

// connectionKey is the key of the connection in the context of a request.
type connectionKey struct{}

// withConnection is the ConnContext of an http.Server that serves connections.
func withConnection(ctx context.Context, c net.Conn) context.Context {
	if secured, ok := c.(*tls.Conn); ok {
		c = secured.NetConn()
	}
	return context.WithValue(ctx, connectionKey{}, c)
}

// connectionOf gives the connection of a request; nil when it came otherwise.
func connectionOf(ctx context.Context) *connection {
	c, _ := ctx.Value(connectionKey{}).(*connection)
	return c
}
