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

package pages

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
)

// pagedAPI serves ConfigMaps of these sizes, and nothing but whole pages.
type pagedAPI struct {
	sizes    []int
	largest  atomic.Int64
	requests atomic.Int64
}

func (a *pagedAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	limit, _ := strconv.Atoi(q.Get("limit"))
	from, _ := strconv.Atoi(q.Get("continue"))
	if limit == 0 || q.Get("resourceVersion") != "" {
		limit = len(a.sizes) // as the watch cache answers
	}
	list := corev1.ConfigMapList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMapList"}}
	list.ResourceVersion = "7"
	for i := from; i < min(from+limit, len(a.sizes)); i++ {
		list.Items = append(list.Items, corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", i)}, Data: map[string]string{"d": strings.Repeat("x", a.sizes[i])},
		})
	}
	if from+limit < len(a.sizes) {
		list.Continue = strconv.Itoa(from + limit)
	}
	text, err := json.Marshal(list)
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	n, _ := w.Write(text)
	a.requests.Add(1)
	a.largest.Store(max(a.largest.Load(), int64(n)))
}

// TestPages: a list is read in pages of few bytes, wherever its large objects are. A page is
// trimmed before the next one is read.
func TestPages(t *testing.T) {
	small, large := slices.Repeat([]int{100}, 2000), slices.Repeat([]int{1 << 20}, 20)
	for name, test := range map[string]struct {
		sizes    []int
		requests int64
	}{
		"none":               {nil, 1},
		"small ones":         {small, 12},
		"large ones":         {large, 30},
		"large ones at last": {slices.Concat(small, large), 50},
		"one huge one":       {[]int{pageBytes + 1}, 6},
		"small, huge, small": {slices.Concat(small, []int{2 * pageBytes}, small), 60},
	} {
		t.Run(name, func(t *testing.T) {
			api := &pagedAPI{sizes: test.sizes}
			server := httptest.NewServer(api)
			defer server.Close()
			config := &rest.Config{Host: server.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
			config.Wrap(Limit)
			clients, err := kubernetes.NewForConfig(config)
			if err != nil {
				t.Fatal(err)
			}
			inTurn, decoded := 0, 0
			from := &toolscache.ListWatch{ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				list, err := clients.CoreV1().ConfigMaps("").List(ctx, o)
				inTurn = 0
				for i := range list.Items {
					inTurn += len(list.Items[i].Data["d"])
				}
				decoded = max(decoded, inTurn)
				return list, err
			}}
			informer, ok := NewInformers()(from, &corev1.ConfigMap{}, 0, toolscache.Indexers{}).(*informer)
			if !ok {
				t.Fatal("another informer")
			}
			if err := informer.SetTransform(func(o any) (any, error) {
				o.(*corev1.ConfigMap).Data = nil //nolint:errcheck // nothing else is listed
				return o, nil
			}); err != nil {
				t.Fatal(err)
			}
			all, err := informer.source.ListWithContext(t.Context(), metav1.ListOptions{ResourceVersion: "0", Limit: 500})
			if err != nil {
				t.Fatal(err)
			}
			items, err := json.Marshal(all)
			if err != nil || strings.Count(string(items), `"name":"c`) != len(test.sizes) || strings.Contains(string(items), "xxx") {
				t.Errorf("listed %d bytes, %v; want %d objects without data", len(items), err, len(test.sizes))
			}
			if biggest := max(pageBytes, slices.Max(append(test.sizes, 0))); decoded > biggest {
				t.Errorf("a page of %d bytes was decoded, want at most %d", decoded, biggest)
			}
			if got := api.requests.Load(); got > test.requests {
				t.Errorf("%d requests, want at most %d", got, test.requests)
			}
		})
	}
}

// TestTrimmedWatch: events with an object of the kind are trimmed, and a stopped watch ends.
func TestTrimmedWatch(t *testing.T) {
	events := watch.NewFake()
	informer, ok := NewInformers()(&toolscache.ListWatch{
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return events, nil },
	}, &corev1.ConfigMap{}, 0, toolscache.Indexers{}).(*informer)
	if !ok {
		t.Fatal("another informer")
	}
	if err := informer.SetTransform(func(o any) (any, error) {
		o.(*corev1.ConfigMap).Data = nil //nolint:errcheck // nothing else is watched
		return o, nil
	}); err != nil {
		t.Fatal(err)
	}
	w, err := informer.source.WatchWithContext(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	full := func() *corev1.ConfigMap { return &corev1.ConfigMap{Data: map[string]string{"d": "x"}} }
	for _, e := range []watch.Event{
		{Type: watch.Added, Object: full()}, {Type: watch.Modified, Object: full()}, {Type: watch.Deleted, Object: full()},
		{Type: watch.Bookmark, Object: full()}, {Type: watch.Error, Object: &metav1.Status{}},
	} {
		go events.Action(e.Type, e.Object)
		got := <-w.ResultChan()
		data := 0
		if c, ok := got.Object.(*corev1.ConfigMap); ok {
			data = len(c.Data)
		}
		if got.Type != e.Type || data != 0 && e.Type != watch.Bookmark {
			t.Errorf("%s: got %s with %d of data", e.Type, got.Type, data)
		}
	}
	taken := make(chan struct{})
	go func() {
		events.Add(full())
		close(taken)
	}()
	<-taken // the event waits for a receiver
	w.Stop()
	for range w.ResultChan() {
	}
}
