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
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

const (
	// RollbackPath asks for a Deployment to be rolled back.
	RollbackPath = "/openapi/altershield/deployment/rollback"
	// RollbackWorkloadPath asks for a workload of any kind to be rolled back.
	RollbackWorkloadPath = "/openapi/altershield/workload/rollback"
)

// deployments is the kind of RollbackPath and SuspendPath, whose fields name Deployments.
var deployments = workload.Deployment{}

// Rollbacker takes requests for rollbacks. Its errors are the errors of
// [cluster.Cluster.RequestRollback].
type Rollbacker interface {
	RequestRollback(ctx context.Context, key workload.Key, version string, at time.Time) (to string, err error)
}

// rollbackRequest is the body of a request to RollbackPath.
type rollbackRequest struct {
	Namespace      string `json:"namespace"`
	DeploymentName string `json:"deploymentName"`
	// Version to go back to; empty means the newest version that succeeded.
	Version string `json:"version"`
}

// rollbackWorkloadRequest is the body of a request to RollbackWorkloadPath. Its fields have
// other names than the fields of rollbackRequest. The signature does not cover the path, so a
// body for one path must not be valid for the other.
type rollbackWorkloadRequest struct {
	Namespace  string `json:"namespace"`
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	// Version to go back to; empty means the newest version that succeeded.
	Version string `json:"version"`
}

// asked is the workload and the version of a request for a rollback.
type asked struct {
	key     workload.Key
	version string
}

// decodeOnly reads a body that must be one JSON object with the fields of into.
func decodeOnly(body []byte, into any, fields string) error {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("the body is not %s: %w", fields, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more than one JSON object in the body")
	}
	return nil
}

func checkNames(namespace, name, field, kind string) error {
	if problems := validation.IsDNS1123Label(namespace); len(problems) > 0 {
		return fmt.Errorf("namespace is not the name of a namespace: %s", strings.Join(problems, "; "))
	}
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return fmt.Errorf("%s is not the name of a %s: %s", field, kind, strings.Join(problems, "; "))
	}
	return nil
}

func readRollbackRequest(body []byte) (asked, error) {
	var request rollbackRequest
	if err := decodeOnly(body, &request, `{"namespace","deploymentName","version"}`); err != nil {
		return asked{}, err
	}
	return asked{key: workload.Key{
		GroupKind:      deployments.GroupVersionKind().GroupKind(),
		NamespacedName: types.NamespacedName{Namespace: request.Namespace, Name: request.DeploymentName},
	}, version: request.Version}, checkNames(request.Namespace, request.DeploymentName, "deploymentName", "deployment")
}

// readRollbackOf reads a request about a workload of one of these kinds.
func readRollbackOf(kinds *workload.Registry) func(body []byte) (asked, error) {
	return func(body []byte) (asked, error) {
		var request rollbackWorkloadRequest
		if err := decodeOnly(body, &request, `{"namespace","apiVersion","kind","name","version"}`); err != nil {
			return asked{}, err
		}
		gk := schema.FromAPIVersionAndKind(request.APIVersion, request.Kind).GroupKind()
		if _, ok := kinds.Of(gk); !ok {
			return asked{}, fmt.Errorf("apiVersion and kind are %q and %q: workloads of this kind are not defended; those are %s",
				request.APIVersion, request.Kind, describeKinds(kinds))
		}
		return asked{
			key:     workload.Key{GroupKind: gk, NamespacedName: types.NamespacedName{Namespace: request.Namespace, Name: request.Name}},
			version: request.Version,
		}, checkNames(request.Namespace, request.Name, "name", "workload")
	}
}

// describeKinds returns the names of the defended kinds.
func describeKinds(kinds *workload.Registry) string {
	var all []string
	for _, k := range kinds.Kinds() {
		apiVersion, kind := k.GroupVersionKind().ToAPIVersionAndKind()
		all = append(all, apiVersion+" "+kind)
	}
	return strings.Join(all, ", ")
}

// takeRollback takes requests for rollbacks. The leader carries them out.
func (s *Server) takeRollback(read func(body []byte) (asked, error)) signedHandler {
	return func(w http.ResponseWriter, r *http.Request, body []byte) (handled bool) {
		request, err := read(body)
		if err != nil {
			writeJSON(w, http.StatusBadRequest, codeAnswer{http.StatusBadRequest, err.Error()})
			return true
		}
		// The signature covers the timestamp.
		at, err := parseTimestamp(r.Header.Get(altershield.HeaderTimestamp))
		if err != nil {
			s.refuse(w, r, err)
			return true
		}
		to, err := s.opts.Rollbacks.RequestRollback(r.Context(), request.key, request.version, at)
		return s.answerRollback(w, request, to, err)
	}
}

// answerRollback answers a request for a rollback.
func (s *Server) answerRollback(w http.ResponseWriter, request asked, to string, err error) (handled bool) {
	name := strings.ToLower(request.key.Kind) + " " + request.key.NamespacedName.String()
	refused, tooMany := (*cluster.RefusedError)(nil), (*cluster.TooManyError)(nil)
	switch {
	case err == nil:
		writeJSON(w, http.StatusAccepted, codeAnswer{http.StatusAccepted, fmt.Sprintf("%s is rolled back to version %s", name, to)})
	case errors.Is(err, cluster.ErrNoWorkload):
		writeJSON(w, http.StatusNotFound, codeAnswer{http.StatusNotFound, "no " + name + " is defended"})
	case errors.Is(err, cluster.ErrRepeated):
		writeJSON(w, http.StatusConflict, codeAnswer{http.StatusConflict, err.Error()})
	case errors.As(err, &tooMany):
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(tooMany.After.Seconds()))))
		writeJSON(w, http.StatusTooManyRequests, codeAnswer{http.StatusTooManyRequests, err.Error()})
		return false
	case errors.As(err, &refused):
		writeJSON(w, http.StatusConflict, codeAnswer{http.StatusConflict, refused.Why})
	default:
		s.opts.Log.Error(err, "accept a request for a rollback", "workload", name)
		writeJSON(w, http.StatusServiceUnavailable, codeAnswer{http.StatusServiceUnavailable, "the cluster can't be reached now, try again"})
		return false
	}
	return true
}
