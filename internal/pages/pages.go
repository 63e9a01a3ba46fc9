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

// Package pages reads lists in pages of few bytes. Otherwise an API server that does not
// stream lists (Kubernetes 1.33) sends all objects of a kind at once, and every user may
// create objects of 1.5 MB.
package pages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
)

const (
	// firstPage is the most objects of the first page of a list, and maxPage of any page.
	firstPage, maxPage = 100, 500
	// pageBytes is the most bytes of a page, unless it has a single object. Decoded, a
	// template of many short values takes 30 times as much.
	pageBytes = 4 << 20
	// pageTimeout is how long a page may take, including the wait for other pages.
	pageTimeout = time.Minute
)

// errTooLarge is the error of reading a page of more than pageBytes.
var errTooLarge = errors.New("the page is too large")

// sizeKey is the key of the size in the context of a request.
type sizeKey struct{}

// size counts the bytes of a page.
type size struct {
	bytes   int
	bounded bool
}

// Limit counts the bytes of pages, and ends an answer that has too many with errTooLarge.
// It wraps the transport of a rest.Config.
func Limit(next http.RoundTripper) http.RoundTripper { return limiter{next} }

type limiter struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (l limiter) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := l.next.RoundTrip(r)
	if read, ok := r.Context().Value(sizeKey{}).(*size); ok && err == nil {
		answer.Body = &countedBody{ReadCloser: answer.Body, read: read}
	}
	return answer, err
}

type countedBody struct {
	io.ReadCloser
	read *size
}

// Read implements io.Reader.
func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.read.bytes += n; b.read.bounded && b.read.bytes > pageBytes {
		return 0, errTooLarge
	}
	return n, err
}

// Each lists page after page. The size of the objects of a page determines how many the next
// page has. A page that is too large is read again with fewer objects.
func Each(ctx context.Context, list func(ctx context.Context, limit int64, from string) (next string, err error)) error {
	for limit, from := int64(firstPage), ""; ; {
		read := &size{bounded: limit > 1}
		next, err := list(context.WithValue(ctx, sizeKey{}, read), limit, from)
		switch {
		case errors.Is(err, errTooLarge):
			limit = max(limit/4, 1)
		case err != nil || next == "":
			return err
		default:
			// The next page uses half of pageBytes, if its objects have the same size.
			from, limit = next, max(min(limit*pageBytes/2/int64(max(read.bytes, 1)), limit*4, maxPage), 1)
		}
	}
}

// NewInformers returns the constructor of informers whose lists are read and trimmed page
// by page, one page at a time for all kinds.
func NewInformers() func(toolscache.ListerWatcher, runtime.Object, time.Duration, toolscache.Indexers) toolscache.SharedIndexInformer {
	turn := make(chan struct{}, 1)
	return func(
		from toolscache.ListerWatcher, of runtime.Object, resync time.Duration, by toolscache.Indexers,
	) toolscache.SharedIndexInformer {
		source := &trimmedSource{from: toolscache.ToListerWatcherWithContext(from), turn: turn}
		return &informer{SharedIndexInformer: toolscache.NewSharedIndexInformer(source, of, resync, by), source: source}
	}
}

// informer makes its source trim objects: an informer would trim a list only after it has
// read the whole list.
type informer struct {
	toolscache.SharedIndexInformer
	source *trimmedSource
}

// SetTransform implements SharedIndexInformer. It is called before the informer starts.
func (i *informer) SetTransform(trim toolscache.TransformFunc) error {
	i.source.trim = trim
	return nil
}

// trimmedSource lists and watches objects of one kind, trimmed.
type trimmedSource struct {
	from toolscache.ListerWatcherWithContext
	turn chan struct{}
	trim toolscache.TransformFunc
}

var _ toolscache.ListerWatcherWithContext = &trimmedSource{}

// List implements ListerWatcher.
func (s *trimmedSource) List(o metav1.ListOptions) (runtime.Object, error) {
	return s.ListWithContext(context.Background(), o)
}

// Watch implements ListerWatcher.
func (s *trimmedSource) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(context.Background(), o)
}

// ListWithContext implements ListerWithContext.
func (s *trimmedSource) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	// With a resource version the API server ignores the limit: it sends all objects of its
	// watch cache at once.
	o.ResourceVersion, o.ResourceVersionMatch = "", ""
	all := &internalversion.List{}
	err := Each(ctx, func(ctx context.Context, limit int64, from string) (string, error) {
		o.Limit, o.Continue = limit, from
		return s.readPage(ctx, o, all)
	})
	return all, err
}

// readPage adds a page to a list.
func (s *trimmedSource) readPage(ctx context.Context, o metav1.ListOptions, all *internalversion.List) (next string, err error) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	page, err := s.from.ListWithContext(ctx, o)
	if err != nil {
		return "", err
	}
	about, err := meta.ListAccessor(page)
	if err != nil {
		return "", fmt.Errorf("read a list: %w", err)
	}
	if all.ResourceVersion == "" {
		all.ResourceVersion = about.GetResourceVersion() // the same for all pages
	}
	return about.GetContinue(), meta.EachListItemWithAlloc(page, func(item runtime.Object) error {
		trimmed, err := s.trimmed(item)
		if err == nil {
			all.Items = append(all.Items, trimmed)
		}
		return err
	})
}

// WatchWithContext implements WatcherWithContext.
func (s *trimmedSource) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	events, err := s.from.WatchWithContext(ctx, o)
	if err != nil {
		return nil, err
	}
	w := &trimmedWatch{from: events, result: make(chan watch.Event), stopped: make(chan struct{})}
	go w.pass(s.trimmed)
	return w, nil
}

// trimmedWatch passes the events of a watch on, with trimmed objects. Unlike a watch.Filter,
// it ends when it is stopped, even without a receiver.
type trimmedWatch struct {
	from    watch.Interface
	result  chan watch.Event
	stopped chan struct{}
	once    sync.Once
}

// Stop implements watch.Interface.
func (w *trimmedWatch) Stop() {
	w.once.Do(func() { close(w.stopped) })
	w.from.Stop()
}

// ResultChan implements watch.Interface.
func (w *trimmedWatch) ResultChan() <-chan watch.Event { return w.result }

func (w *trimmedWatch) pass(trim func(runtime.Object) (runtime.Object, error)) {
	defer close(w.result)
	for e := range w.from.ResultChan() {
		if e.Type == watch.Added || e.Type == watch.Modified || e.Type == watch.Deleted {
			trimmed, err := trim(e.Object)
			if err != nil {
				e = watch.Event{Type: watch.Error, Object: &apierrors.NewInternalError(err).ErrStatus}
			} else {
				e.Object = trimmed
			}
		}
		select {
		case w.result <- e:
		case <-w.stopped:
			return
		}
	}
}

func (s *trimmedSource) trimmed(o runtime.Object) (runtime.Object, error) {
	if s.trim == nil {
		return o, nil
	}
	trimmed, err := s.trim(o)
	if err != nil {
		return nil, err
	}
	object, ok := trimmed.(runtime.Object)
	if !ok {
		return nil, fmt.Errorf("trimmed to a %T, which is no object", trimmed)
	}
	return object, nil
}
