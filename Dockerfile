# syntax=docker/dockerfile:1

FROM --platform=$BUILDPLATFORM golang:1.26 AS builder
ARG TARGETOS
ARG TARGETARCH
ARG VERSION=dev
ARG COMMIT=unknown
WORKDIR /workspace

# The modules change more rarely than the code and get a layer of their own.
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod \
    go mod download

# .dockerignore lets through exactly what the manager is built from.
COPY . .
RUN --mount=type=cache,target=/go/pkg/mod \
    --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=${TARGETOS} GOARCH=${TARGETARCH} \
    go build -trimpath -ldflags "-s -w -X main.version=${VERSION} -X main.commit=${COMMIT}" -o /manager .

FROM gcr.io/distroless/static:nonroot
LABEL org.opencontainers.image.source=https://github.com/traas-stack/altershield-operator \
      org.opencontainers.image.licenses=Apache-2.0
COPY --from=builder /manager /manager
USER 65532:65532
ENTRYPOINT ["/manager"]
