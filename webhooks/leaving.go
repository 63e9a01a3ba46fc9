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

package webhooks

import (
	"context"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// leaving closes connections with their answers while this pod ends, so that API servers
// connect to another replica. API servers keep HTTP/1.1 connections to a Service open. If the
// server closed one at its end, a request that was just written would be lost, and would pass
// without the webhook. So all connections are closed between the deletion of the pod and the
// end of its preStop sleep.
func leaving(ending func(context.Context) bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if ending(r.Context()) {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// isEnding returns a function that reports whether a pod is being deleted. Outside of a cluster
// name is empty.
func isEnding(reader client.Reader, name types.NamespacedName) func(context.Context) bool {
	return func(ctx context.Context) bool {
		var pod corev1.Pod
		return name.Name != "" && reader.Get(ctx, name, &pod) == nil && pod.DeletionTimestamp != nil
	}
}
