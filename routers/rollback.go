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
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// RollbackPath asks for a workload to be rolled back.
const RollbackPath = "/openapi/altershield/deployment/rollback"

// deployments is the kind of workload that RollbackPath and SuspendPath are about:
// their fields name Deployments, whatever else is defended.
var deployments = workload.Deployment{}

// Rollbacker takes requests for rollbacks. Its errors are those of
// [cluster.Cluster.RequestRollback].
type Rollbacker interface {
	RequestRollback(ctx context.Context, key workload.Key, version string, at time.Time) (to string, err error)
}

// rollbackRequest is the body of a request to RollbackPath.
type rollbackRequest struct {
	Namespace      string `json:"namespace"`
	DeploymentName string `json:"deploymentName"`
	// Version to go back to; empty is the newest one that succeeded.
	Version string `json:"version"`
}

func readRollbackRequest(body []byte) (*rollbackRequest, error) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	var request rollbackRequest
	if err := decoder.Decode(&request); err != nil {
		return nil, fmt.Errorf(`the body is not {"namespace","deploymentName","version"}: %w`, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more than one JSON object in the body")
	}
	if problems := validation.IsDNS1123Label(request.Namespace); len(problems) > 0 {
		return nil, fmt.Errorf("namespace is not the name of a namespace: %s", strings.Join(problems, "; "))
	}
	if problems := validation.IsDNS1123Subdomain(request.DeploymentName); len(problems) > 0 {
		return nil, fmt.Errorf("deploymentName is not the name of a deployment: %s", strings.Join(problems, "; "))
	}
	return &request, nil
}

// rollBack takes a request for a rollback; the leader carries it out.
func (s *Server) rollBack(w http.ResponseWriter, r *http.Request, body []byte) (handled bool) {
	request, err := readRollbackRequest(body)
	if err != nil {
		writeJSON(w, http.StatusBadRequest, codeAnswer{http.StatusBadRequest, err.Error()})
		return true
	}
	// Verified with the signature.
	at, err := parseTimestamp(r.Header.Get(altershield.HeaderTimestamp))
	if err != nil {
		s.refuse(w, r, err)
		return true
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.limits.record)
	defer cancel()
	name := request.Namespace + "/" + request.DeploymentName
	key := workload.Key{
		GroupKind:      deployments.GroupVersionKind().GroupKind(),
		NamespacedName: types.NamespacedName{Namespace: request.Namespace, Name: request.DeploymentName},
	}
	to, err := s.opts.Rollbacks.RequestRollback(ctx, key, request.Version, at)
	refused := (*cluster.RefusedError)(nil)
	switch {
	case err == nil:
		writeJSON(w, http.StatusAccepted, codeAnswer{http.StatusAccepted, fmt.Sprintf("deployment %s is rolled back to version %s", name, to)})
	case errors.Is(err, cluster.ErrNoWorkload):
		writeJSON(w, http.StatusNotFound, codeAnswer{http.StatusNotFound, "no deployment " + name + " is under defense"})
	case errors.Is(err, cluster.ErrRepeated):
		writeJSON(w, http.StatusConflict, codeAnswer{http.StatusConflict, err.Error()})
	case errors.As(err, &refused):
		writeJSON(w, http.StatusConflict, codeAnswer{http.StatusConflict, refused.Why})
	default:
		s.opts.Log.Error(err, "accept a request for a rollback", "deployment", name)
		writeJSON(w, http.StatusServiceUnavailable, codeAnswer{http.StatusServiceUnavailable, "the cluster can't be reached now, try again"})
		return false
	}
	return true
}
